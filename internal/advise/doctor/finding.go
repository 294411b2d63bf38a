package doctor

import "fmt"

// Status is how much a finding matters.
type Status int

// From harmless to fatal.
const (
	OK      Status = iota
	Note           // works, and there is something to know; or it could not be found out
	Warning        // works badly, or not for all
	Failure        // does not work
)

var statusNames = [...]string{"ok", "note", "warning", "failure"}

func (s Status) String() string { return statusNames[s] }

// MarshalText is how a status is written in JSON.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (s *Status) UnmarshalText(text []byte) error {
	for i, name := range statusNames {
		if name == string(text) {
			*s = Status(i)
			return nil
		}
	}
	return fmt.Errorf("doctor: no status %q", text)
}

// Finding is what one check found.
type Finding struct {
	ID     string `json:"id"` // stable, for programs
	Status Status `json:"status"`
	Found  string `json:"found"`
	Needed string `json:"needed,omitempty"` // and why; empty when ok
	Fix    string `json:"fix,omitempty"`    // one line to type or to write; empty when there is none
}

func ok(id, format string, args ...any) Finding {
	return Finding{ID: id, Found: fmt.Sprintf(format, args...)}
}

// unknown says that something could not be found out, which is never an ok.
func unknown(id, what string, why error) Finding {
	return Finding{ID: id, Status: Note, Found: fmt.Sprintf("%s could not be found out: %v", what, why)}
}
