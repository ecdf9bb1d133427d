"""The recipes, installed as `zoo.conf`. Nothing to import: see zoo/recipes.py."""
