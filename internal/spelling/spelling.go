// Package spelling guesses what a misspelt name was meant to be.
//
// It is pure: names in, names out.
package spelling

import (
	"slices"
	"strings"
)

// tooLong is the length from which a name is compared by its beginning only, so
// that a hostile one costs little.
const tooLong = 128

// Nearest returns the known names that word was probably meant to be, the most
// likely first, at most limit of them. Case does not count. A name that differs
// in more than a third of its letters is not meant, unless one holds the other.
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
		holds := len(word) >= 3 && (strings.Contains(folded, word) || strings.Contains(word, folded) && len(folded) >= 3)
		if d <= max(len(word), len(folded))/3 || holds {
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

func fold(s string) string { return strings.ToLower(s[:min(len(s), tooLong)]) }

// distance counts the letters to insert, delete or replace (Levenshtein). Two
// neighbours that changed places count as two.
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

// Slip returns the known name that word is when one or two letters of it are
// wrong, and none when more are: for places where most names are unknown.
func Slip(word string, known []string) []string {
	for _, name := range Nearest(word, known, 1) {
		if d := distance(fold(word), fold(name)); d <= 2 && d*4 <= len(name) {
			return []string{name}
		}
	}
	return nil
}
