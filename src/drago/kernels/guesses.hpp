// Weights of a capped simplex that are guessed before all losses are known.
//
// They are known up to a threshold tau,
//
//     chi2:  q_i = p_i clip((l_i - tau) / nu, 0, cap)
//     KL:    q_i = p_i min(exp((l_i - tau) / nu), cap)
//
// and tau is known when all losses are. With a guess of it, row i has the weights
//
//     chi2:  first_i = the q_i of the guess                 second_i = p_i if it is free, or 0
//     KL:    first_i = the q_i of the guess if it is free   second_i = the q_i of the guess if not
//
// of which the exact ones are a combination, q_i = a first_i + b second_i, but for the rows that
// change sides: (1, (tau' - tau) / nu) for chi2, (exp((tau' - tau) / nu), 1) for KL.
#pragma once

#include <array>
#include <cstdint>

#include "views.hpp"

namespace drago {

enum GuessKind : int { NO_GUESS = 0, CHI2_GUESS = 1, KL_GUESS = 2 };

struct Guess {
    int kind;
    double tau, nu, cap;
};

// Fills in both kinds of guessed weights; p may be one number, that of every row.
void guess_weights(const Guess& guess, In p, In losses, Out first, Out second);

// How many rows have a weight, the sum of these, and that of weight times slope.
struct Heavy {
    Index count;
    double mass, along;
};

// Lists the places of the rows of weight, and weight times slope of each.
Heavy find_heavy(In weights, In slopes, std::int64_t* places, double* products);

// Vectors of the rows that a gradient reads; p as above.
struct Weighing {
    In p, q, losses, slopes;
};

// How the exact weights follow from the guessed ones: q = a first + b second.
struct Combined {
    double a, b;
};

// Sums for that, over rows lo to hi that are free for the guess and for q: of q - first and p for
// chi2, of q and first for KL; and how many these are.
std::array<double, 3> combining(const Guess& guess, const Weighing& of, Index lo, Index hi);

// Lists those of the rows lo to hi whose weight is not the combination, and for each what is left
// of it times the slope; the sum of these is the `along`, and there is no mass.
Heavy find_rest(const Guess& guess, Combined with, const Weighing& of, Index lo, Index hi,
                std::int64_t* rows, double* rest);

}  // namespace drago
