"""What moves between rooms and between processes: frozen records, standard library only."""
