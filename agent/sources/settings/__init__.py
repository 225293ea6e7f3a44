"""What a network card is set to, one module per place it is read from."""
