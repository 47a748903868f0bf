// The products of matrices that are worth a BLAS: the one that SciPy brings.
#pragma once

#include "views.hpp"

namespace drago {

// y = X x, or y = X' x.
void gemv(Mat<const double> X, bool transposed, const double* x, double* y);

// The lower triangle of square (in the order of C) += rows' rows.
void add_square(Mat<const double> rows, Mat<double> square);

}  // namespace drago
