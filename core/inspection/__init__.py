"""What a checkpoint's step graph takes and gives, readable without weights or a compiler."""
