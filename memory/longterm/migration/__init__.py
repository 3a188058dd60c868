"""Migration: converts the memories of other systems to memory items."""
