"""The page of charts about a verified bundle."""
