"""``python train.py --model NAME``: the same as ``zoo train --model NAME``."""

from zoo.cli import main

if __name__ == "__main__":
    main()
