"""What commands answer, as typed data: written, read and checked by its types (`answer`)."""
