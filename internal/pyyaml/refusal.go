package pyyaml

import (
	"encoding/json"
	"fmt"
	"math"
)

// Refusal says why the value of a key is refused.
type Refusal struct {
	What string // what the value is: "is 0"
	Fix  string // what to write instead
}

func (r *Refusal) Error() string { return r.What + "; " + r.Fix }

// Whole returns a value of YAML or JSON as a whole number, if it is one of 64 bits.
func Whole(value any) (int64, bool) {
	switch v := value.(type) {
	case int64:
		return v, true
	case uint64:
		return int64(v), v <= math.MaxInt64
	case json.Number:
		n, err := v.Int64()
		return n, err == nil
	}
	return 0, false
}

// Describe returns a value of YAML or JSON for a sentence.
func Describe(value any) string {
	switch v := value.(type) {
	case string:
		return fmt.Sprintf("the text %.80q", v)
	case nil:
		return "empty"
	case []any:
		return "a list"
	case map[string]any:
		return "a mapping"
	}
	return fmt.Sprintf("%.80s", fmt.Sprint(value))
}
