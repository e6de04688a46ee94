"""Steps of several sessions as one batch, against taking turns."""
