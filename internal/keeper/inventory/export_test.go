package inventory

// Followed returns how many files Uses hears of.
func (v *Inventory) Followed() (n int) {
	v.tables(func(t *table) {
		for i := range t.shards {
			s := &t.shards[i]
			s.mu.Lock()
			n += len(s.followed)
			s.mu.Unlock()
		}
	})
	return n
}
