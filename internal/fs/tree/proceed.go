package tree

// Proceed is asked right before a system call that changes something. Its error ends the call of the tree, and nothing has changed: what
// comes before may have taken so long that the client was told so.
type Proceed func() error

func ask(all []Proceed) error {
	for _, proceed := range all {
		if err := proceed(); err != nil {
			return err
		}
	}
	return nil
}

// after returns fn, for which all must agree first.
func after(all []Proceed, fn func() error) func() error {
	return func() error {
		if err := ask(all); err != nil {
			return err
		}
		return fn()
	}
}
