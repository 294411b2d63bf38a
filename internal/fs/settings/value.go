package settings

import (
	"math"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// value is a setting's value in 64 bits. The key's kind decides what it is: 0 or 1, a
// count, the bits of a float64 of seconds, or nanoseconds.
type value int64

func fromBool(b bool) value {
	if b {
		return 1
	}
	return 0
}

func fromSeconds(d time.Duration) value {
	return value(math.Float64bits(max(d, 0).Seconds()))
}

// asTimeout returns a value of kind seconds as a Duration, or the longest Duration if
// that is too short: a value is parsed before its range is checked.
func (v value) asTimeout() time.Duration {
	ns := math.Float64frombits(uint64(v)) * float64(time.Second)
	if ns >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(ns)
}

// unit is one of the units a duration is written in, largest first.
type unit struct {
	suffix string
	each   time.Duration
}

func units() []unit {
	return []unit{
		{"day", 24 * time.Hour}, {"h", time.Hour}, {"min", time.Minute}, {"s", time.Second},
		{"ms", time.Millisecond}, {"us", time.Microsecond}, {"ns", time.Nanosecond},
	}
}

// format writes v as a TOML value. Scripts compare the raw text, so there is one
// spelling for each value.
func format(k kind, v value) string {
	switch k {
	case boolean:
		return strconv.FormatBool(v != 0)
	case integer:
		return strconv.FormatInt(int64(v), 10)
	case seconds:
		s := strconv.FormatFloat(math.Float64frombits(uint64(v)), 'f', -1, 64)
		if !strings.Contains(s, ".") {
			s += ".0" // without it TOML would call it an integer
		}
		return s
	}
	if v != 0 {
		for _, u := range units() {
			if v%value(u.each) == 0 {
				return "'" + strconv.FormatInt(int64(v/value(u.each)), 10) + u.suffix + "'"
			}
		}
	}
	return "'0ns'"
}

// parse reads a TOML value; a string needs no quotes. EIO: it is not of that kind.
// EINVAL: it is negative.
func parse(k kind, text string) (value, error) {
	text = strings.Trim(text, " \t\r\n")
	switch k {
	case boolean:
		switch text {
		case "true":
			return 1, nil
		case "false":
			return 0, nil
		}
		return 0, syscall.EIO
	case integer:
		return parseInteger(text)
	case seconds:
		return parseSeconds(text)
	}
	return parseDuration(text)
}

func parseInteger(text string) (value, error) {
	digits := strings.TrimLeft(text, "+-")
	if len(digits) > 1 && digits[0] == '0' && !strings.ContainsRune("xob", rune(digits[1])) {
		return 0, syscall.EIO // Go reads octal, TOML does not allow the number
	}
	n, err := strconv.ParseInt(text, 0, 64)
	if err != nil {
		return 0, syscall.EIO
	}
	if n < 0 {
		return 0, syscall.EINVAL
	}
	return value(n), nil
}

func parseSeconds(text string) (value, error) {
	if strings.Trim(text, "+-0123456789.eE") != "" {
		return 0, syscall.EIO // also infinities, NaN and hexadecimal: no valid time for the kernel
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, syscall.EIO
	}
	if f < 0 {
		return 0, syscall.EINVAL
	}
	return value(math.Float64bits(math.Abs(f))), nil // Abs: -0 is a zero like the other
}

func parseDuration(text string) (value, error) {
	if n := len(text); n >= 2 && (text[0] == '\'' || text[0] == '"') && text[n-1] == text[0] {
		text = text[1 : n-1]
	}
	end := len(strings.TrimRight(text, "adhimnsuy"))
	count, err := strconv.ParseInt(text[:end], 10, 64)
	if err != nil {
		return 0, syscall.EIO
	}
	for _, u := range units() {
		if text[end:] != u.suffix {
			continue
		}
		switch {
		case count < 0:
			return 0, syscall.EINVAL
		case count > math.MaxInt64/int64(u.each):
			return 0, syscall.EIO
		}
		return value(count * int64(u.each)), nil
	}
	return 0, syscall.EIO
}
