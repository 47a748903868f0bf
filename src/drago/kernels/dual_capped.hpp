// The dual oracle of a capped simplex, 0 <= q_i <= cap p_i, without sorting.
//
// Solved here: argmax_q <u, q> - c Omega(q) with sum q = 1. One scalar tau decides:
//
//     chi2:  q_i = p_i clip((u_i - tau) / c, 0, cap)
//     KL:    q_i = p_i min(exp((u_i - tau) / c), cap)
//
// CVaR has cap = 1 / tail_fraction, the whole simplex cap = inf. tau is kept as the pair
// (ref, delta), tau = ref + delta: differences to a nearby ref are exact in floating point, so the
// answer stays right where c is far below the rounding of u.
//
// With chi2 the nominal weights p may be one number, that of every row: not to read them takes a
// third off a search where there are many.
#pragma once

#include <array>

#include "views.hpp"

namespace drago {

// Passes of Newton's method before the robust start (a selection in linear time) is paid for.
inline constexpr int PATIENCE = 12;
inline constexpr Index SUBSAMPLE = 2048;
// Steps of the search that follows such a start: more than there are halvings of a bracket.
inline constexpr int BISECTIONS = 1100;
// Rows that a selection looks at first, at least.
inline constexpr Index SAMPLE = 512;

// The sum of q, and the masses below 0 and above cap p.
std::array<double, 3> outside(In q, In p, double cap);

// The largest value m of u with p(u >= m) >= mass; linear time on average. Where there are many
// rows, the same of some of them for a little more and a little less mass is a bracket (Floyd and
// Rivest 1975), and what lies in it is selected from.
double upper_quantile(In u, In p, double mass);

// c = 0: the cap is filled from the largest loss down; ties share in proportion to p.
double capped_vertex(In u, In p, double cap, Out q);

// Exact weights with the chi2 divergence; returns tau for a warm start (NaN: cold).
double capped_chi2(In u, In p, double c, double cap, double tau, Out q);

// Exact weights with the KL divergence; returns tau for a warm start (NaN: cold). Where it is not
// empty, `log_ratio` receives log(q / p), which does not underflow.
double capped_kl(In u, In p, double c, double cap, double tau, Out q, Out log_ratio);

}  // namespace drago
