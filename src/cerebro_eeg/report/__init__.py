"""Pictures of stores and recordings. They show numbers and channel names, never a path, a date or a text of a file."""
