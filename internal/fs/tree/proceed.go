package tree

// Proceed is asked right before a system call that changes something. Its error ends the call of the tree, and nothing has changed: what
// comes before may have taken so long that the client was told so. nodes are what the change uses, as far as they are known.
type Proceed func(nodes ...uint64) error

func ask(all []Proceed, uses ...*node) error {
	if len(all) == 0 {
		return nil
	}
	ids := make([]uint64, 0, len(uses))
	for _, n := range uses {
		if n != nil {
			ids = append(ids, n.id)
		}
	}
	for _, proceed := range all {
		if err := proceed(ids...); err != nil {
			return err
		}
	}
	return nil
}

// after returns fn, for which all must agree first.
func after(all []Proceed, fn func() error, uses ...*node) func() error {
	return func() error {
		if err := ask(all, uses...); err != nil {
			return err
		}
		return fn()
	}
}
