package manual

import (
	"fmt"
	"strings"
)

// Status is a status of an answer or of a command that is no success, or no complete one.
type Status struct {
	Code    int
	Meaning string
}

// Errno is an errno and what it means.
type Errno struct{ Name, Meaning string }

// ErrorsPage returns docs/reference/errors.md.
func ErrorsPage(about About, rings []Errno, pages []Status, description []byte) (string, error) {
	api, err := FailureOf(description)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("# Errors\n\n" + generated)
	b.WriteString("What commands exit with, what requests of rings fail with, and what the two HTTP services answer when they refuse something. What to do about a symptom: [troubleshooting.md](../troubleshooting.md). What the calls of the client libraries and the mount answer: [usrbio.md](../spec/usrbio.md).\n")
	b.WriteString("\n## Commands\n\nMessages go to standard error.\n\n| exit status | meaning |\n|---|---|\n")
	for _, e := range about.Exit {
		fmt.Fprintf(&b, "| %s | %s |\n", e[0], cell(e[1]))
	}
	b.WriteString("\n## Rings\n\nThe result of a request that failed is one of these, negated (`kv3fs_ring_requests_failed_total` counts them), or what else the data directory's file system answered.\n\n| errno | meaning, and what to do |\n|---|---|\n")
	for _, e := range rings {
		fmt.Fprintf(&b, "| %s | %s |\n", e.Name, cell(e.Meaning))
	}
	b.WriteString("\n## API\n\nAn error is a [Failure](api.md#failure): what is wrong, and the cure.\n\n" + cell(api) + "\n")
	b.WriteString("\n## Page service\n\nAn error is `{\"detail\": \"what is wrong\"}`, as engines know it from FastAPI. Engines take any for a miss, or for pages that they were not given.\n\n| status | meaning, and what to do |\n|---|---|\n")
	for _, s := range pages {
		fmt.Fprintf(&b, "| %d | %s |\n", s.Code, cell(s.Meaning))
	}
	return b.String(), nil
}
