"""Who runs jobs, and with which rights: the launcher, its ledger and its leases."""
