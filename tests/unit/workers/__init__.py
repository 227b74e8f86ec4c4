"""Tests of sophon_loader/workers."""
