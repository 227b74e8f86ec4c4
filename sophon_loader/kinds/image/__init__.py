"""Pictures: their header, the steps that their programs are made of, and images whose pixels are not made yet."""
