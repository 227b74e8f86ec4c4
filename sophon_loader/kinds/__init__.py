"""What a file is: one folder for each kind, which alone knows what its files hold. No torch."""
