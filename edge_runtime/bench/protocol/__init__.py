"""What ``edge-runtime bench`` measures first, the protocol of the source articles: whole requests, plain and drafted."""
