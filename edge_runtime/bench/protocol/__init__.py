"""What ``edge-runtime bench`` measures first, the protocol of the source articles: whole answers, plain and drafted."""
