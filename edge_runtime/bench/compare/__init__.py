"""Every drafter and every policy against plain decoding, by kind of text: measured, searched, priced, judged."""
