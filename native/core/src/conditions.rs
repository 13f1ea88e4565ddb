//! Conditions on rows: which rows of a table are published (`headrace/rules/predicates.py`).

use std::cmp::Ordering;

use crate::fields::{Binary, Kind};
use crate::spans::Span;
use crate::{Fit, Unfit};

/// Truth as two bits, so that "and" is `&` and "or" is `|`: 0 false, 1 unknown, 3 true.
type Truth = u8;
const FALSE: Truth = 0;
const UNKNOWN: Truth = 1;
const TRUE: Truth = 3;

/// A condition with SQL's three values: a comparison with NULL is unknown.
#[derive(Debug)]
pub enum Condition {
    /// All of them are true: AND.
    Every(Vec<Condition>),
    /// At least one is true: OR.
    Any(Vec<Condition>),
    /// It is false.
    Not(Box<Condition>),
    /// The field with this number is NULL.
    IsNull(usize),
    /// A field, and what it is compared with.
    Leaf(usize, Test),
}

/// A test of a value that is not NULL.
#[derive(Debug)]
pub enum Test {
    /// Whole numbers, years, and times in microseconds.
    Int(Operator, Vec<i128>),
    /// DECIMAL, of any precision.
    Decimal(Operator, Vec<Exact>),
    /// FLOAT and DOUBLE.
    Float(Operator, Vec<f64>),
    /// Texts, dates and times, by their bytes in UTF-8.
    Text(Operator, Vec<Vec<u8>>),
    /// The same values as `Text`, by a pattern.
    Like(Like),
}

/// How a value compares with one literal, or with several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// `==`
    Equal,
    /// `!=`
    Unequal,
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `>`
    More,
    /// `>=`
    AtLeast,
    /// Equal to one of several.
    In,
}

impl Operator {
    fn holds<T: PartialOrd>(self, value: &T, literals: &[T]) -> bool {
        let order = literals.first().and_then(|first| value.partial_cmp(first));
        match self {
            Operator::Equal => order == Some(Ordering::Equal),
            Operator::Unequal => order != Some(Ordering::Equal),
            Operator::Less => order == Some(Ordering::Less),
            Operator::AtMost => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            Operator::More => order == Some(Ordering::Greater),
            Operator::AtLeast => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
            Operator::In => literals.iter().any(|one| value.partial_cmp(one) == Some(Ordering::Equal)),
        }
    }
}

/// A decimal number of any size: digits without zeros at either end, and the number of those before the point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exact {
    negative: bool,
    digits: Vec<u8>,
    before: i64,
}

impl Exact {
    /// Reads digits with a point and a sign.
    pub fn new(text: &[u8]) -> Fit<Self> {
        let (negative, rest) = match text.split_first() {
            Some((b'-', rest)) => (true, rest),
            _ => (false, text),
        };
        let point = rest.iter().position(|&byte| byte == b'.').unwrap_or(rest.len());
        let mut digits: Vec<u8> = rest.iter().copied().filter(|&byte| byte != b'.').collect();
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) || rest.len() > digits.len() + 1 {
            return Err(Unfit);
        }
        let zeros = digits.iter().take_while(|&&digit| digit == b'0').count();
        digits.drain(..zeros);
        while digits.last() == Some(&b'0') {
            digits.pop();
        }
        if digits.is_empty() {
            return Ok(Self { negative: false, digits, before: 0 });
        }
        Ok(Self { negative, digits, before: point as i64 - zeros as i64 })
    }

    fn size(&self, other: &Self) -> Ordering {
        match (self.digits.is_empty(), other.digits.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            _ => self.before.cmp(&other.before).then_with(|| self.digits.cmp(&other.digits)),
        }
    }
}

impl PartialOrd for Exact {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(match (self.negative, other.negative) {
            (false, false) => self.size(other),
            (true, true) => other.size(self),
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
        })
    }
}

/// The pieces of a LIKE pattern between its `%`, as `_pieces` in `headrace/rules/likes.py` returns them; None is `_`.
#[derive(Debug)]
pub struct Like(pub Vec<Vec<Option<char>>>);

impl Like {
    fn matches(&self, text: &[char]) -> bool {
        let fits = |piece: &[Option<char>], at: usize| {
            text.get(at..at + piece.len()).is_some_and(|part| {
                part.iter().zip(piece).all(|(one, wanted)| wanted.is_none_or(|wanted| wanted == *one))
            })
        };
        let Some((first, others)) = self.0.split_first() else { return text.is_empty() };
        let Some((last, middle)) = others.split_last() else { return text.len() == first.len() && fits(first, 0) };
        let Some(end) = text.len().checked_sub(last.len()).filter(|&end| end >= first.len()) else { return false };
        if !fits(first, 0) || !fits(last, end) {
            return false;
        }
        let mut at = first.len();
        for piece in middle {
            let Some(found) = (at..=end).find(|&from| from + piece.len() <= end && fits(piece, from)) else {
                return false;
            };
            at = found + piece.len();
        }
        true
    }
}

impl Condition {
    /// Returns whether the condition and the kinds of its fields fit.
    pub fn fits(&self, kinds: &[Kind]) -> bool {
        match self {
            Condition::Every(parts) | Condition::Any(parts) => {
                !parts.is_empty() && parts.iter().all(|part| part.fits(kinds))
            }
            Condition::Not(part) => part.fits(kinds),
            Condition::IsNull(field) => *field < kinds.len(),
            Condition::Leaf(field, test) => kinds.get(*field).is_some_and(|kind| test.fits(kind)),
        }
    }

    /// Returns whether a row meets the condition.
    pub fn is_met(&self, kinds: &[Kind], data: &[u8], image: &[Span], scratch: &mut Vec<u8>) -> Fit<bool> {
        Ok(self.truth(kinds, data, image, scratch)? == TRUE)
    }

    fn truth(&self, kinds: &[Kind], data: &[u8], image: &[Span], scratch: &mut Vec<u8>) -> Fit<Truth> {
        let of = |holds: bool| if holds { TRUE } else { FALSE };
        Ok(match self {
            Condition::Every(parts) => {
                let mut truth = TRUE;
                for part in parts {
                    truth &= part.truth(kinds, data, image, scratch)?;
                }
                truth
            }
            Condition::Any(parts) => {
                let mut truth = FALSE;
                for part in parts {
                    truth |= part.truth(kinds, data, image, scratch)?;
                }
                truth
            }
            Condition::Not(part) => match part.truth(kinds, data, image, scratch)? {
                TRUE => FALSE,
                FALSE => TRUE,
                other => other,
            },
            Condition::IsNull(field) => of(image[*field].of(data).is_none()),
            Condition::Leaf(field, test) => match image[*field].of(data) {
                None => UNKNOWN,
                Some(raw) => of(test.holds(&kinds[*field], raw, scratch)?),
            },
        })
    }
}

impl Test {
    fn fits(&self, kind: &Kind) -> bool {
        match self {
            Test::Int(..) => matches!(kind, Kind::Int { .. } | Kind::Bit { .. } | Kind::Year | Kind::Time(_)),
            Test::Decimal(..) => matches!(kind, Kind::Decimal(_)),
            Test::Float(..) => matches!(kind, Kind::Float | Kind::Double),
            Test::Text(..) | Test::Like(_) => match kind {
                Kind::Compressed { value, .. } => self.fits(value),
                Kind::Text { .. }
                | Kind::Enum { .. }
                | Kind::Set { .. }
                | Kind::Date
                | Kind::Datetime(_)
                | Kind::Timestamp { .. } => true,
                _ => false,
            },
        }
    }

    fn holds(&self, kind: &Kind, raw: &[u8], scratch: &mut Vec<u8>) -> Fit<bool> {
        scratch.clear();
        Ok(match self {
            Test::Int(operator, literals) => operator.holds(&kind.whole(raw)?, literals),
            Test::Float(operator, literals) => operator.holds(&kind.number(raw)?, literals),
            Test::Decimal(operator, literals) => {
                kind.plain(scratch, raw, Binary::Base64)?;
                operator.holds(&Exact::new(scratch)?, literals)
            }
            Test::Text(operator, literals) => {
                kind.plain(scratch, raw, Binary::Base64)?;
                if matches!(kind, Kind::Datetime(_) | Kind::Timestamp { .. }) && scratch.contains(&b'.') {
                    while scratch.last() == Some(&b'0') {
                        scratch.pop();
                    }
                    if scratch.last() == Some(&b'.') {
                        scratch.pop();
                    }
                }
                operator.holds(&*scratch, literals)
            }
            Test::Like(like) => {
                kind.plain(scratch, raw, Binary::Base64)?;
                let text: Vec<char> = std::str::from_utf8(scratch).map_err(|_| Unfit)?.chars().collect();
                like.matches(&text)
            }
        })
    }
}
