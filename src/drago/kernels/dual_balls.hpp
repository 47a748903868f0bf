// The dual oracles of the divergence balls, D(q || p) <= radius, without sorting.
//
// Solved here: argmax_q <u, q> - c Omega(q). With the multiplier lambda of the radius,
//
//     chi2 ball:  q_i = p_i max((u_i - tau) / (c + lambda), 0)
//     KL ball:    q_i ~ p_i exp(u_i / (c + lambda))
//
// so the answer depends on c and the radius only through c + lambda.
#pragma once

#include "views.hpp"

namespace drago {

struct BallAnswer {
    double cost, memory;
};

struct Boundary {
    double centre, offset, cut;
};

// 1/2 sum_i (q_i - p_i)^2 / p_i.
double chi2_divergence(In q, In p);

// sum_i q_i u_i - c / 2 sum_i (q_i - p_i)^2 / p_i.
double chi2_value(In u, In q, In p, double c);

// Centre, offset and cut of the ball's boundary, by one sort.
Boundary chi2_ball_sorted(In u, In p, double radius);

// Exact weights in the chi2 ball; returns c + lambda and the next call's tau. On the boundary the
// rows above tau = m - y carry the weight, m their mean, V their variance and M their mass:
// y = sqrt(V / ((1 + 2 radius) M - 1)) and q_i = p_i (u_i - m + y) / (M y). Repeating that formula
// from all rows raises tau monotonically to the answer.
BallAnswer chi2_ball(In u, In p, double c, double radius, double tau, Out q);

// Exact weights in the KL ball; returns c + lambda and the next call's theta. theta = 1 / (c +
// lambda) solves D(theta) = radius; Newton's method in a bracket on sqrt(2 D), which starts out
// linear in theta.
BallAnswer kl_ball(In u, In p, double c, double radius, double theta, Out q,
                          Out log_ratio);

}  // namespace drago
