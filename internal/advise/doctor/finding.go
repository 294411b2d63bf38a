package doctor

import "fmt"

// Status is how much a finding matters.
type Status int

// From harmless to fatal.
const (
	OK      Status = iota
	Note           // works, with something to know; or could not be determined
	Warning        // works badly, or not for all users
	Failure        // does not work
)

var statusNames = [...]string{"ok", "note", "warning", "failure"}

func (s Status) String() string { return statusNames[s] }

// MarshalText writes a status as in JSON: by its name.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText writes.
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
	ID     string `json:"id"` // does not change between versions: programs compare it
	Status Status `json:"status"`
	Found  string `json:"found"`
	Needed string `json:"needed,omitempty"` // and why; empty when ok
	Fix    string `json:"fix,omitempty"`    // one line to type or to write, if one helps
}

func ok(id, format string, args ...any) Finding {
	return Finding{ID: id, Found: fmt.Sprintf(format, args...)}
}

// unknown reports that a check could not find something out, which is never OK.
func unknown(id, what string, err error) Finding {
	return Finding{ID: id, Status: Note, Found: fmt.Sprintf("cannot determine %s: %v", what, err)}
}
