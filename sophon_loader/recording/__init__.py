"""Datasets of any class: pictures that `PIL.Image.open` gives while a sample is made have no pixels before a look."""
