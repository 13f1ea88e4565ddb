//! The ranges of the columns of row images.

use crate::fields::Shape;
use crate::{Fit, Unfit};

/// The range of one column of one row image, or NULL.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    start: u32,
    end: u32,
}

impl Span {
    pub(crate) const NULL: Self = Self { start: u32::MAX, end: u32::MAX };

    /// Returns the range; both ends are below 4 GB.
    pub(crate) fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    /// Returns the bytes of the value; None for NULL.
    #[inline]
    pub(crate) fn of(self, data: &[u8]) -> Option<&[u8]> {
        if self.start == u32::MAX {
            None
        } else {
            Some(&data[self.start as usize..self.end as usize])
        }
    }
}

/// Adds the columns of one image that has all of them, and returns where it ends.
#[inline]
pub fn image(spans: &mut Vec<Span>, shapes: &[Shape], data: &[u8], mut at: usize, stop: usize) -> Fit<usize> {
    let width = shapes.len().div_ceil(8);
    let nulls_at = at;
    at += width;
    if at > stop {
        return Err(Unfit);
    }
    for (i, shape) in shapes.iter().enumerate() {
        if data[nulls_at + i / 8] >> (i % 8) & 1 == 1 {
            spans.push(Span::NULL);
            continue;
        }
        let (start, end) = match *shape {
            Shape::Fixed(size) => (at, at + size),
            Shape::Var(width) => {
                let start = at + width;
                let raw = data.get(at..start).ok_or(Unfit)?;
                let size = raw.iter().rev().fold(0usize, |n, &byte| n << 8 | byte as usize);
                (start, start + size)
            }
        };
        if end > stop {
            return Err(Unfit);
        }
        spans.push(Span::new(start, end));
        at = end;
    }
    Ok(at)
}
