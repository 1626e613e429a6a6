"""Records: walk -> parse -> classify -> inventory; layout timelines and epochs; summaries.

Public: `service.RecordsService`, `schemas`, `tables`, `filters.RecordFilter` (what a query or a policy selects),
`facts.FileFact`, `store_dir.StoreDirectory` (the only way the product touches a store's files).
"""
