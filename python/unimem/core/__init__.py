"""Names as the documents import them."""
