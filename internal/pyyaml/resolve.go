package pyyaml

import (
	"encoding/json"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// words are YAML 1.1's Booleans. Each is written so, in capitals, or with a capital first
// letter.
var words = map[string]bool{"yes": true, "on": true, "true": true, "no": false, "off": false, "false": false}

// cased reports whether a text is a word in one of the three cases that YAML knows.
func cased(text, word string) bool {
	return slices.Contains([]string{word, strings.ToUpper(word), strings.ToUpper(word[:1]) + word[1:]}, text)
}

// resolve returns what a text without quotes is.
func resolve(text string) any {
	lower := strings.ToLower(text)
	if is, ok := words[lower]; ok && cased(text, lower) {
		return is
	}
	if text == "" || text == "~" || lower == "null" && cased(text, lower) {
		return nil
	}
	sign, digits := 1.0, text
	if text[0] == '-' || text[0] == '+' {
		digits = text[1:]
		if text[0] == '-' {
			sign = -1
		}
	}
	if n, ok := whole(digits); ok {
		if sign < 0 {
			n.Neg(n)
		}
		return number(n)
	}
	if f, ok := fraction(digits, text); ok {
		return sign * f
	}
	return text
}

func number(n *big.Int) any {
	switch {
	case n.IsUint64():
		return n.Uint64()
	case n.IsInt64():
		return n.Int64()
	}
	return json.Number(n.String())
}

// whole reads a whole number without a sign.
func whole(text string) (*big.Int, bool) {
	if strings.Contains(text, ":") {
		return sixties(text)
	}
	base := 10
	switch digits := strings.ReplaceAll(text, "_", ""); {
	case text == "" || text[0] < '0' || text[0] > '9' || digits == "":
		return nil, false
	case digits == "0":
		return new(big.Int), true
	case strings.HasPrefix(text, "0b"):
		base, text = 2, digits[2:]
	case strings.HasPrefix(text, "0x"):
		base, text = 16, digits[2:]
	case text[0] == '0':
		base, text = 8, digits
	default:
		text = digits
	}
	if strings.ContainsAny(text, "+-") {
		return nil, false
	}
	return new(big.Int).SetString(text, base)
}

// sixties reads a whole number in base 60, such as 1:30 for ninety.
func sixties(text string) (*big.Int, bool) {
	parts := strings.Split(text, ":")
	first, n := strings.ReplaceAll(parts[0], "_", ""), new(big.Int)
	if !decimal(first) || parts[0][0] == '_' || first[0] == '0' {
		return nil, false
	}
	n.SetString(first, 10)
	for _, part := range parts[1:] {
		digit, err := strconv.Atoi(part)
		if err != nil || !decimal(part) || len(part) > 2 || digit > 59 {
			return nil, false
		}
		n.Add(n.Mul(n, big.NewInt(60)), big.NewInt(int64(digit)))
	}
	return n, true
}

func decimal(text string) bool { return text != "" && strings.Trim(text, "0123456789") == "" }

// fraction reads a number with a point, without its sign. Without a point, and with an
// exponent that has no sign, it is text. The whole text is for what may have no sign.
func fraction(digits, whole string) (float64, bool) {
	switch lower := strings.ToLower(digits); {
	case lower == ".inf" && cased(digits[1:], "inf"):
		return math.Inf(1), true
	case slices.Contains([]string{".nan", ".NaN", ".NAN"}, whole):
		return math.NaN(), true
	}
	before, after, pointed := strings.Cut(digits, ".")
	if !pointed || strings.Contains(before, ":") || before == "" && whole != digits {
		return 0, false
	}
	if before != "" && (before[0] == '_' || !decimal(strings.ReplaceAll(before, "_", ""))) {
		return 0, false
	}
	decimals, exponent := after, ""
	if at := strings.IndexAny(after, "eE"); at >= 0 {
		decimals, exponent = after[:at], after[at:]
		if len(exponent) < 3 || exponent[1] != '-' && exponent[1] != '+' || !decimal(exponent[2:]) {
			return 0, false
		}
	}
	some := strings.ReplaceAll(decimals, "_", "")
	if some != "" && !decimal(some) || before == "" && (decimals == "" || decimals[0] == '_') {
		return 0, false
	}
	f, err := strconv.ParseFloat(strings.ReplaceAll(before, "_", "")+"."+some+exponent, 64)
	if err != nil && !math.IsInf(f, 0) {
		return 0, false
	}
	return f, true
}
