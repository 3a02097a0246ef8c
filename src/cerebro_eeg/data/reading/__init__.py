"""From any EEG file to a Recording: microvolts, canonical channels, gaps, events and faults."""
