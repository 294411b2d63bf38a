package engineconfig

// Severity is the effect of a problem on the engine.
type Severity int

// From harmless to fatal.
const (
	Note    Severity = iota // it works, but is worth knowing
	Warning                 // it works slowly, or not as the file says
	Failure                 // it does not start, or does not use the storage
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
	Key      string // the key as the file writes it, "" for the whole file
	What     string // what the file says and what the engine does with it
	Fix      string // what to write instead; "" if there is nothing to do
}
