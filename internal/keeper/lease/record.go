package lease

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Holder says who holds a lease, for people; Nonce alone tells one holder from another.
type Holder struct {
	Identity string `json:"identity"` // of the host, whatever its name is now
	Host     string `json:"host"`
	PID      int    `json:"pid"`
	Nonce    string `json:"nonce"` // differs for each process
}

// String names a holder in a log.
func (h Holder) String() string {
	if h == (Holder{}) {
		return "unknown"
	}
	return fmt.Sprintf("%s (%s, pid %d)", h.Host, h.Identity, h.PID)
}

// record is the content of a lease's file.
type record struct {
	Token    uint64 `json:"token"`
	Holder   Holder `json:"holder"`
	PeriodMs int64  `json:"period_ms"`
	Renewals uint64 `json:"renewals"`
	Released bool   `json:"released,omitempty"`
}

// recordBytes is the size of a record, which never changes: a renewal needs no space. It is less
// than a page, so that it is written as a whole.
const recordBytes = 2048

const (
	mostText  = 80 // three of them fit, however they are escaped
	minPeriod = time.Second
	maxPeriod = time.Hour
)

var errRecord = errors.New("not the record of a lease")

// encode returns a record of recordBytes, a line of JSON filled up with spaces.
func (r record) encode() ([]byte, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	b, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	if len(b) >= recordBytes {
		return nil, fmt.Errorf("%w: %d bytes", errRecord, len(b))
	}
	b = append(b, bytes.Repeat([]byte{' '}, recordBytes-1-len(b))...)
	return append(b, '\n'), nil
}

// decode reads what encode returned. Whatever the bytes are, it returns a record that encode accepts or
// an error.
func decode(b []byte) (r record, err error) {
	if len(b) != recordBytes || b[recordBytes-1] != '\n' {
		return record{}, fmt.Errorf("%w: %d bytes", errRecord, len(b))
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(&r); err != nil {
		return record{}, fmt.Errorf("%w: %w", errRecord, err)
	}
	if rest := b[d.InputOffset():]; len(bytes.TrimSpace(rest)) > 0 {
		return record{}, fmt.Errorf("%w: there is more after it", errRecord)
	}
	if err := r.check(); err != nil {
		return record{}, err
	}
	return r, nil
}

func (r record) check() error {
	period := time.Duration(r.PeriodMs) * time.Millisecond
	h := r.Holder
	switch {
	case r.PeriodMs < minPeriod.Milliseconds() || r.PeriodMs > maxPeriod.Milliseconds():
		return fmt.Errorf("%w: a period of %v", errRecord, period)
	case r.Token == 0 || r.Token > mostToken:
		return fmt.Errorf("%w: token %d", errRecord, r.Token)
	case h.Nonce == "":
		return fmt.Errorf("%w: of nobody", errRecord)
	}
	for _, text := range [...]string{h.Identity, h.Host, h.Nonce} {
		if len(text) > mostText || !utf8.ValidString(text) {
			return fmt.Errorf("%w: holder %q", errRecord, text)
		}
	}
	return nil
}

func (r record) period() time.Duration { return time.Duration(r.PeriodMs) * time.Millisecond }

const (
	prefix      = "lease-"
	tokenDigits = 12
	mostToken   = 999_999_999_999
)

func nameOf(token uint64) string { return fmt.Sprintf("%s%0*d", prefix, tokenDigits, token) }

// parseName returns the token in the name of a lease's file.
func parseName(name string) (token uint64, ok bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	if !ok || len(digits) != tokenDigits {
		return 0, false
	}
	token, err := strconv.ParseUint(digits, 10, 64)
	return token, err == nil && token > 0 && nameOf(token) == name
}
