package shm

// Look has fn read the window's bytes, which another process may change or take away
// meanwhile: fn must not rely on reading the same twice, and must not keep them. ErrFault: they are not all there.
func (w Window) Look(fn func(b []byte)) error { return Guard(func() { fn(w.b) }) }

// Fill copies b into the window, as far as it reaches.
func (w Window) Fill(b []byte) error { return Guard(func() { copy(w.b, b) }) }
