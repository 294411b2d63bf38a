package engineconfig

// Severity says what a problem does to the engine.
type Severity int

// From harmless to fatal.
const (
	Note    Severity = iota // works, and there is something to know
	Warning                 // works otherwise than the file says, or slowly
	Failure                 // does not start, or does not use the storage
)

func (s Severity) String() string {
	switch s {
	case Note:
		return "note"
	case Warning:
		return "warning"
	}
	return "failure"
}

// Problem is one thing that is wrong, or worth knowing, in a configuration.
type Problem struct {
	Severity Severity
	Key      string // the key as the file writes it, "" when it is about the whole file
	What     string // what is there and what the engine makes of it
	Cure     string // what to write instead; "" if there is nothing to do
}
