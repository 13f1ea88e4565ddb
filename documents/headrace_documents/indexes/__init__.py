"""Tables as documents, as [[index]] declares."""
