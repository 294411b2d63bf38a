package volumes

import "fmt"

// Kind says what a caller can do about a failure.
type Kind int

const (
	// Invalid: the request itself is wrong, and would be at any time.
	Invalid Kind = iota + 1
	// Missing: there is no such volume or directory.
	Missing
	// Taken: something else is in its place.
	Taken
	// Refused: it can be done once the node or the cache is set up for it.
	Refused
	// NotReady: the daemon does not answer now; try again.
	NotReady
	// Busy: a former call for the same volume has not ended; try again.
	Busy
)

// Failure is an error with its kind. Its text names the thing and the cure.
type Failure struct {
	Kind Kind
	text string
	err  error // nil, or what Unwrap returns
}

func failure(kind Kind, format string, args ...any) *Failure {
	err := fmt.Errorf(format, args...)
	f := &Failure{Kind: kind, text: err.Error()}
	if u, ok := err.(interface{ Unwrap() error }); ok {
		f.err = u.Unwrap()
	}
	return f
}

// Error returns the text.
func (f *Failure) Error() string { return f.text }

// Unwrap returns the error behind it, if there is one.
func (f *Failure) Unwrap() error { return f.err }
