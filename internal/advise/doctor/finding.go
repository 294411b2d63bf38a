package doctor

import "fmt"

// Status is how much a finding matters.
type Status int

// From harmless to fatal.
const (
	OK      Status = iota
	Note           // works, but worth knowing; or could not be determined
	Warning        // works badly, or not for all users
	Failure        // does not work
)

var statusNames = [...]string{"ok", "note", "warning", "failure"}

func (s Status) String() string { return statusNames[s] }

// MarshalText returns the status's name.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses a status's name.
func (s *Status) UnmarshalText(text []byte) error {
	for i, name := range statusNames {
		if name == string(text) {
			*s = Status(i)
			return nil
		}
	}
	return fmt.Errorf("doctor: unknown status %q", text)
}

// Finding is what one check found.
type Finding struct {
	ID     string `json:"id"` // stable across versions, so that programs can compare it
	Status Status `json:"status"`
	Found  string `json:"found"`
	Needed string `json:"needed,omitempty"` // what is needed, and why; empty if OK
	Fix    string `json:"fix,omitempty"`    // one line to run or to write, if one helps
}

func ok(id, format string, args ...any) Finding {
	return Finding{ID: id, Found: fmt.Sprintf(format, args...)}
}

// unknown returns a Finding for a check without a result, which is never OK.
func unknown(id, what string, err error) Finding {
	return Finding{ID: id, Status: Note, Found: fmt.Sprintf("cannot determine %s: %v", what, err)}
}
