"""From filtered blocks to a store on disk: recipes, preparation, shards, commit records."""
