// Package spelling guesses which known name was meant by a misspelt one.
package spelling

import (
	"slices"
	"strings"
)

// maxCompared is how many bytes of a name are compared, which bounds the cost of a
// hostile name.
const maxCompared = 128

// Nearest returns at most limit known names that word may be a misspelling of, the most
// likely first. Case is ignored. A name that differs in more than a third of its letters
// is left out, unless one name contains the other.
func Nearest(word string, known []string, limit int) []string {
	type guess struct {
		name     string
		distance int
	}
	word = fold(word)
	var guesses []guess
	for _, name := range known {
		folded := fold(name)
		d := distance(word, folded)
		contains := len(word) >= 3 && (strings.Contains(folded, word) || strings.Contains(word, folded) && len(folded) >= 3)
		if d <= max(len(word), len(folded))/3 || contains {
			guesses = append(guesses, guess{name, d})
		}
	}
	slices.SortStableFunc(guesses, func(a, b guess) int { return a.distance - b.distance })
	var names []string
	for _, g := range guesses[:min(limit, len(guesses))] {
		names = append(names, g.name)
	}
	return names
}

func fold(s string) string { return strings.ToLower(s[:min(len(s), maxCompared)]) }

// distance returns the Levenshtein distance, the number of bytes to insert, delete or
// replace. Two swapped neighbours count as two.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			above := row[j+1]
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			row[j+1] = min(replace, above+1, row[j]+1)
			diagonal = above
		}
	}
	return row[len(b)]
}

// Misspelt returns the known name from which word differs in one or two letters, if any.
// It is stricter than Nearest, for places where most names are legitimately unknown.
func Misspelt(word string, known []string) []string {
	for _, name := range Nearest(word, known, 1) {
		if d := distance(fold(word), fold(name)); d <= 2 && d*4 <= len(name) {
			return []string{name}
		}
	}
	return nil
}
