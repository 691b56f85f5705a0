"""What a wafer job returns: as data, in words, as a picture."""
