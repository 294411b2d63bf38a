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

// Places returns how many pairs of a directory and a group have a number.
func (v *Inventory) Places() int {
	v.dirs.mu.RLock()
	defer v.dirs.mu.RUnlock()
	return len(v.dirs.places.all)
}

// WithoutFiles calls fn while nothing is known of any file: what looks at one panics.
func (v *Inventory) WithoutFiles(fn func()) {
	main := v.main
	v.main = nil
	defer func() { v.main = main }()
	fn()
}
