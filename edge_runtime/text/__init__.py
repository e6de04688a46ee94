"""Text: tokenizer, detokenizer, stop strings, chat templates. Knows no model and no engine."""
