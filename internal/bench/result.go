package main

import (
	"fmt"
	"io"
	"math"
	"slices"
)

// result is one measurement, a line of JSON.
type result struct {
	way
	Run     int `json:"run"`
	Nodes   int `json:"nodes"`
	Workers int `json:"workers"`

	// Seconds lie between the start of the daemon and the departure of the last
	// node: its start and its discovery, 2 s of listening, are in it.
	Seconds        float64 `json:"seconds"`
	NodesPerMinute float64 `json:"nodes_per_minute"`

	// Daemon is the daemon's process alone. HelperProcess is the plugin's, or
	// that of the adapter, whose children are the scripts.
	Daemon        usage `json:"daemon"`
	HelperProcess usage `json:"helper_process"`

	// Connections are those that the daemon opened to the broker.
	Connections int `json:"connections"`
	// Calls are those that reached a node, by action (agent#action), Errors the
	// ones it answered with a status other than OK.
	Calls  map[string]int `json:"calls"`
	Errors map[string]int `json:"errors"`
}

// compare writes the medians of each way, the ways of one helper beside one
// another.
func compare(w io.Writer, results []*result) error {
	const layout = "%-20s %13v %11v %9v %12v %11v %12v\n"
	_, err := fmt.Fprintf(w, "\n"+layout, "", "nodes/minute", "CPU s", "peak MB", "connections", "helper CPU", "helper MB")
	for _, way := range ways() {
		of := func(value func(*result) float64) float64 { return median(results, way, value) }
		rate := of(func(r *result) float64 { return r.NodesPerMinute })
		if rate == 0 {
			continue
		}
		fmt.Fprintf(w, layout, way.name(), rate,
			of(func(r *result) float64 { return r.Daemon.CPUSeconds }),
			of(func(r *result) float64 { return r.Daemon.PeakMB }),
			of(func(r *result) float64 { return float64(r.Connections) }),
			round(of(func(r *result) float64 { return r.HelperProcess.CPUSeconds + r.HelperProcess.ChildrenCPUSeconds }), 100),
			of(func(r *result) float64 { return r.HelperProcess.PeakMB }),
		)
		if older := median(results, olderWay(way), func(r *result) float64 { return r.NodesPerMinute }); way.Connecting == shared && !way.Upgrades && older > 0 {
			fmt.Fprintf(w, "%-20s %12.1fx of the older way\n", "", rate/older)
		}
		if off := median(results, withoutUpgrades(way), func(r *result) float64 { return r.NodesPerMinute }); way.Upgrades && off > 0 {
			fmt.Fprintf(w, "%-20s %+12.1f%% of the same without upgrades\n", "", 100*(rate/off-1))
		}
	}

	return err
}

func olderWay(w way) way { return way{Helper: w.Helper, Connecting: perCall} }

func withoutUpgrades(w way) way { return way{Helper: w.Helper, Connecting: w.Connecting} }

// median of the results of one way; 0 when there are none.
func median(results []*result, w way, value func(*result) float64) float64 {
	var values []float64
	for _, r := range results {
		if r.way == w {
			values = append(values, value(r))
		}
	}
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	mid := len(values) / 2
	if len(values)%2 == 0 {
		return (values[mid-1] + values[mid]) / 2
	}

	return values[mid]
}

func round(x, unit float64) float64 { return math.Round(x*unit) / unit }
