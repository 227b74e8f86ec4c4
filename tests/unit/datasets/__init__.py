"""Tests of sophon_loader/datasets."""
