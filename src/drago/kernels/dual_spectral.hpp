// The dual oracle of a spectral set, by one sort and one sweep of pool-adjacent-violators.
//
// Solved here: argmax_q <u, q> - c Omega(q) over {q : q(A) <= G(p(A)) for all A}. Everything comes
// and goes in the order of increasing u, so memory is read from end to end; sigma is the spectrum's
// mass of each row. Along the order,
//
//     chi2:  q_i = p_i (u_i - v_i) / c          KL:  q_i = p_i exp((u_i - v_i) / c)
//
// with v nondecreasing and constant on pools; a pool B keeps its mass, q(B) = sigma(B). Offsets are
// taken from a row of the pool itself, so that pools far from 0 lose no digits. Each function fills
// ratio = q / p and `first`, the first row of each pool, and returns the number of pools.
#pragma once

#include <cstdint>

#include "views.hpp"

namespace drago {

// int s over [upper - p, upper] for the families 1 (extremile) and 2 (ESRM). Written as a product,
// not as a difference of integrals: a small mass keeps all its digits.
void spectral_masses(int family, double parameter, In upper, In p, Out sigma);

// c = 0: each row gets its spectrum mass; ties share in proportion to p.
Index spectral_vertex(In u, In p, In sigma, Out ratio, Vec<std::int64_t> first);

// Ratios q / p with the chi2 divergence; `mean` and `weight` are workspace.
Index spectral_chi2(In u, In p, In sigma, double c, Out ratio, Out mean, Out weight,
                           Vec<std::int64_t> first);

// Ratios q / p with the KL divergence; `mass` is workspace. `log_ratio`, where it is not empty,
// receives the ratios' logarithms.
Index spectral_kl(In u, In p, In sigma, double c, Out ratio, Out mass, Out log_ratio,
                         Vec<std::int64_t> first);

// q = ratio p, from the sorted order back to the rows'; p is in sorted order.
void scatter(In ratio, In p, Vec<const std::int64_t> order, Out q);

}  // namespace drago
