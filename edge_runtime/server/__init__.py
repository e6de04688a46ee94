"""HTTP for local clients: OpenAI's endpoints over a scheduler. Knows no engine and no process."""
