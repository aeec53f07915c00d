package demo

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

// faultLimit is how long the demo waits for the provisioner to say something of
// a node with a fault, or to provision it, once the healthy ones are done.
const faultLimit = 5 * time.Second

// updateLimit is the same where nodes are sent versions: a lost answer alone takes
// 22 seconds.
const updateLimit = 30 * time.Second

// beginning is in what the provisioner says when it sends a version; what comes of
// it is said later.
const beginning = " begins: "

// upgrades is the feature under which nodes are sent other versions.
const upgrades = "upgrades"

// updatedNode begins the identity of a node with a fault of an update: it is sent
// one.
const updatedNode = "update-"

// FaultOutcome is what became of a node with a fault.
type FaultOutcome struct {
	Fault string `json:"fault"`
	Node  string `json:"node"`
	// State is waiting, configured, restarted or shutdown.
	State string `json:"state"`
	// Calls are those that reached the node.
	Calls int `json:"calls"`
	// Said is the last that the provisioner said of the node, if anything.
	Said string `json:"said,omitempty"`

	node  *simfleet.Node
	about string
}

// checkFaults finds the faults that do not exist, or do not go together.
func (o *Options) checkFaults() error {
	var first simfleet.Fault
	for _, name := range o.Faults {
		fault, err := simfleet.FaultNamed(name)
		if err != nil {
			return fmt.Errorf("--fault: %w", err)
		}
		switch {
		case fault.Feature != "pki" && fault.Feature != "ed25519":
		case first.Feature == "":
			first = fault
		case fault.Feature != first.Feature:
			return fmt.Errorf("--fault: %s needs the feature %s and %s needs %s: only one of the two can be on", first.Name, first.Feature, fault.Name, fault.Feature)
		}
	}

	return nil
}

// features are the provisioner's, as the faults need them.
func (o *Options) features() []string {
	features := []string{"jwt", "ed25519"}
	if o.needs("pki") {
		features[1] = "pki"
	}
	if o.needs(upgrades) {
		features = append(features, upgrades)
	}

	return features
}

// needs tells whether a fault shows only with the feature.
func (o *Options) needs(feature string) bool {
	return slices.ContainsFunc(o.Faults, func(name string) bool {
		fault, err := simfleet.FaultNamed(name)

		return err == nil && fault.Feature == feature
	})
}

// misbehave starts the nodes with faults once the provisioner is at work, for
// it would not hear what happens before.
func (d *demo) misbehave(ctx context.Context) ([]*FaultOutcome, error) {
	if len(d.opts.Faults) == 0 {
		return nil, nil
	}
	err := d.fleet.Wait(ctx, func(c simfleet.Counts) bool { return len(c.Calls) > 0 })
	if err != nil {
		return nil, err
	}

	var outcomes []*FaultOutcome
	for i, name := range d.opts.Faults {
		fault, err := simfleet.FaultNamed(name)
		if err != nil {
			return nil, err
		}
		prefix := "fault-"
		if fault.Feature == upgrades {
			prefix = updatedNode
		}
		n, err := d.faulty.AddFaulty(ctx, fmt.Sprintf("%s%d.example.net", prefix, i), fault)
		if err != nil {
			return nil, err
		}
		outcomes = append(outcomes, &FaultOutcome{Fault: name, node: n, about: fault.About})
	}

	return outcomes, nil
}

// judge sees what became of the nodes with faults.
func (d *demo) judge(ctx context.Context, outcomes []*FaultOutcome) {
	limit := faultLimit
	if d.opts.needs(upgrades) {
		limit = updateLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()

	tick := time.NewTicker(drawInterval)
	defer tick.Stop()
	for {
		decided := true
		for _, o := range outcomes {
			o.Node, o.State, o.Calls = o.node.Identity(), o.node.State().String(), len(o.node.Calls())
			o.Said = d.child.lastWord(o.Node)
			said := o.Said != "" && !strings.Contains(o.Said, beginning)
			decided = decided && (said || o.node.State() == simfleet.Restarted)
		}
		if decided {
			return
		}

		select {
		case <-tick.C:
		case <-d.child.ended:
			return
		case <-ctx.Done():
			return
		}
	}
}

// lastWord is the last warning or error of the log about a node.
func (p *provisioner) lastWord(identity string) string {
	text, err := os.ReadFile(p.logFile)
	if err != nil {
		return ""
	}

	word := ""
	for line := range strings.Lines(string(text)) {
		_, message, ok := strings.Cut(line, " msg=")
		quoted, err := strconv.QuotedPrefix(message)
		if !ok || err != nil || strings.Contains(line, " level=info ") || !strings.Contains(strings.TrimSpace(line)+" ", " identity="+identity+" ") {
			continue
		}
		if said, err := strconv.Unquote(quoted); err == nil {
			word = said
		}
	}

	return word
}

func writeFaults(w io.Writer, outcomes []*FaultOutcome) {
	for _, o := range outcomes {
		fmt.Fprintf(w, "\n  fault %s: %s\n    %s is %s after %d calls\n", o.Fault, o.about, o.Node, o.State, o.Calls)
		if o.Said != "" {
			fmt.Fprintf(w, "    the provisioner says: %s\n", o.Said)
		}
	}
}
